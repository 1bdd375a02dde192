"""Our demos come first. Other folders' demos stay importable."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
