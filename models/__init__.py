"""Our packages come first. Other `models` folders on sys.path, as in tt-metal, stay importable."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
