"""For programs of others that start processes of their own: with this directory on PYTHONPATH, every Python process sets the
golden mesh up before it imports ttnn. GOLDEN_MESH names the machine: N150, N300 or T3K.
"""

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path

REPOSITORY = str(Path(__file__).resolve().parents[4])


class _Imported(Loader):
    """Gives a module that is there already. (Of one that has a __spec__ the import system would run the file again.)"""

    def __init__(self, module):
        self.module, self.spec = module, module.__spec__
        module.__spec__ = None

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec


class _BeforeTtnn(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "ttnn":
            return None
        sys.meta_path.remove(self)
        if REPOSITORY not in sys.path:
            sys.path.append(REPOSITORY)
        from models.common import golden_mesh

        golden_mesh.activate(os.environ.get("GOLDEN_MESH", "N300"))
        import ttnn

        return importlib.util.spec_from_loader(name, _Imported(ttnn), is_package=True)


sys.meta_path.insert(0, _BeforeTtnn())
