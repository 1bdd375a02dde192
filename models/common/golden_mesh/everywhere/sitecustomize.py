"""With this folder on PYTHONPATH every Python process is on the golden mesh from its first `import ttnn` on.

Python imports a module of this name when it starts. GOLDEN_MESH names the machine (N150, N300 or T3K); the launcher
(__main__.py of the golden mesh) sets both, and nobody else does. Until a process imports ttnn it pays for nothing.
"""

import importlib
import importlib.util
import os
import sys
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
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
    def __init__(self, system: str):
        self.system = system

    def find_spec(self, name, path, target=None):
        if name != "ttnn":
            return None
        sys.meta_path.remove(self)
        try:
            with _our_models():
                importlib.import_module("models.common.golden_mesh").activate(self.system)
        except BaseException:
            sys.meta_path.insert(0, self)  # who tries again must not get a ttnn without it
            raise
        return importlib.util.spec_from_loader(name, _Imported(sys.modules["ttnn"]), is_package=True)


@contextmanager
def _our_models():
    """Inside, `models` is this repository's. Other programs for these cards have a package of that name, too.

    Afterwards it is the program's again, imported or yet to be found; only models.common.golden_mesh stays.
    """
    theirs = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "models"}
    if theirs and getattr(theirs["models"], "__file__", None) == f"{REPOSITORY}/models/__init__.py":
        yield
        return
    for name in theirs:
        del sys.modules[name]
    sys.path.insert(0, REPOSITORY)
    try:
        yield
    finally:
        sys.path.remove(REPOSITORY)
        ours = [name for name in sys.modules if name.partition(".")[0] == "models"]
        for name in ours:
            if not f"{name}.".startswith("models.common.golden_mesh."):
                del sys.modules[name]
        sys.modules.update(theirs)


def _run_the_one_behind() -> None:
    """Run the sitecustomize that this one hides, if there is one. It then has the name, as it would without this one."""
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != HERE])
    if spec is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if "GOLDEN_MESH" in os.environ:
    sys.meta_path.insert(0, _BeforeTtnn(os.environ["GOLDEN_MESH"]))
_run_the_one_behind()
