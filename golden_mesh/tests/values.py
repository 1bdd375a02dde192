"""Values on a golden mesh and back, for tests."""

import torch


class Golden:
    """A golden mesh: puts values on its chips, and reads them back as one torch tensor a chip."""

    def __init__(self, device):
        self.device = device
        self.chips = device.get_num_devices()

    def host(self, values, **options):
        """A host tensor of one value for all chips (replicas), or of a list with one for each."""
        import ttnn

        if isinstance(values, list):
            values, mapper = torch.cat(values), ttnn.ShardTensorToMesh(self.device, dim=0)
        else:
            mapper = ttnn.ReplicateTensorToMesh(self.device)
        options = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT} | options
        return ttnn.from_torch(values, mesh_mapper=mapper, **options)

    def put(self, values, *, memory_config=None, **options):
        import ttnn

        where = memory_config or ttnn.DRAM_MEMORY_CONFIG
        return ttnn.to_device(self.host(values, **options), self.device, where)

    def put_ints(self, values, **options):
        """Positions or page tables: int32, row-major."""
        import ttnn

        options = {"dtype": ttnn.int32, "layout": ttnn.ROW_MAJOR_LAYOUT} | options
        return self.put(torch.as_tensor(values, dtype=torch.int32), **options)

    def full(self, value: float, *shape: int, **options):
        return self.put(torch.full(shape or (1, 1, 32, 32), value), **options)

    def capture(self, step):
        """Capture a trace of step(). Returns the trace's id and what step returns."""
        import ttnn

        trace = ttnn.begin_trace_capture(self.device, cq_id=0)
        result = step()
        ttnn.end_trace_capture(self.device, trace, cq_id=0)
        return trace, result

    def get(self, tensor) -> list[torch.Tensor]:
        import ttnn

        return [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]

    def holds(self, tensor, want) -> bool:
        """Whether every chip holds `want`: a number in each element, a tensor, or a list with one for each chip."""
        got = self.get(tensor)
        if not isinstance(want, (list, torch.Tensor)):
            return all(bool((shard == want).all()) for shard in got)
        wants = want if isinstance(want, list) else [want] * self.chips
        return all(g.shape == w.shape and g.double().equal(w.double()) for g, w in zip(got, wants, strict=True))
