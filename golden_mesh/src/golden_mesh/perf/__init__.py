"""Device operations of ttnn programs, counted and priced: golden-mesh perf, and a library for models' own tables.

Times are modeled, not measured: laws (laws.py) with constants fitted to published times of operations (constants.csv,
by fit.py), and measured collectives (collective_prices.py). Nothing here needs an active golden mesh, except
recorder.py.
"""
