"""Imports of the loading processes. The server in child.py imports them once and forks."""

import golden_mesh

golden_mesh.activate("N300")

import models.demos.qwen25_7b.loading.load  # noqa: E402, F401
import tests.loading.support  # noqa: E402, F401
