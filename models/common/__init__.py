"""Code for any model: machines and meshes, strict comparison, commands and their errors.

Our modules come first. Other `models.common` folders on sys.path, as in tt-metal, stay importable.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
