"""Settings from outside the program: from the environment, from a file, or their defaults.

Start reading with `settings`, the table of all settings. `configuration` decides which value counts. `file` finds and
reads the settings file. `kind` parses and formats values. `secret` hides passwords and tokens.
`app`, `worker` and `cli` use this package. It reads nothing before they ask. It imports little on purpose, because
`holdfast --help` loads it.
"""
