"""Device operations of ttnn programs, counted and priced: golden-mesh perf, and a library for models' own tables.

Times are modeled, not measured. The rates are those of Wormhole chips (calibration.py and
collective_prices.py name their sources). Nothing here needs an active golden mesh, except recorder.py.
"""
