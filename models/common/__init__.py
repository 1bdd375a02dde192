"""What any model needs: machines and meshes, the golden mesh, strict comparison, commands and their errors.

Ours come first; what other folders on sys.path have in `models.common` (a tt-metal checkout, say) stays importable beside them.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
