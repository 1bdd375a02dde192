"""Ours come first; what other folders on sys.path call `models` (a tt-metal checkout, say) stays importable beside them."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
