"""What a load takes: a checkpoint of the 7B's shapes, its load from nothing and from the cache, and the floors of both."""
