"""What a loading process needs, imported once by the server that they are forked from: see child.py."""

from models.common import golden_mesh

golden_mesh.activate("N300")

import models.demos.qwen25_7b.loading.load  # noqa: E402, F401
import tests.loading.support  # noqa: E402, F401
