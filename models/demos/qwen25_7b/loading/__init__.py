"""From a checkpoint or the tile cache onto the chips: streamed, mapped, and checked."""
