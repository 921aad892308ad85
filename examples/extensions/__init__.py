"""Everything in dsx that a plugin can extend, one small complete plugin a file.

Turn one on by naming its module: ``dsx.initialize(..., plugins=["examples.extensions.optimizer"])``,
``dsx run --plugin examples.extensions.optimizer train.py``, the environment variable ``DSX_PLUGINS``, or
``[tool.dsx] plugins = [...]`` in your project's pyproject.toml. ``docs/extend.md`` lists them by what they extend.
A package that is installed has an entry point instead, and keeps classes out of its ``plugin.py``.
"""
