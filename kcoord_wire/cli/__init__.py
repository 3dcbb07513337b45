"""The ``kcoord`` command.

* To add a command: a dataclass in the module of its subject (`options` says how), then a row of `main.COMMANDS`.
* To add an option: a field of the command's class.
* To add a setting of the coordinator: a field of `coordinator.core.config.GroupConfig`, which ``--config`` and its help
  read.
* To add a world to ``kcoord simulate``: a class in `simulate`, then a row of `main.COMMANDS`.
* What is shared: `options` (on the way in), `output` (on the way out), `process` (what runs until a signal).
"""

__all__: list[str] = []
