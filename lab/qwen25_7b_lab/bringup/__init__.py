"""The first hour on a card: stages that run what the project has, and a report of measured beside modeled."""
