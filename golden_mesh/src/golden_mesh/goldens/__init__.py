"""The torch meaning of every ttnn op that the golden mesh knows. Importing this package registers them all."""

from importlib import import_module
from pkgutil import walk_packages

from golden_mesh.goldens.nan_signs import read_signs
from golden_mesh.hazards.values import watch

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
watch()
read_signs()
