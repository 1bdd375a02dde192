"""Device operations of ttnn programs, priced: for `perf run`, and for the tables of this model.

Times are modeled, not measured: laws (laws.py) with constants fitted to published times of operations (constants.csv,
by fit.py), and measured collectives (collective_prices.py). Nothing here needs an active golden mesh, except
recorder.py.
"""

TABLE = "ops_perf_results_modeled.csv"  # of `perf run --csv`
