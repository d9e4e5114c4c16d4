"""Settings that stand outside of programs: in the environment, in a file, or nowhere.

Begin with `settings`, which is the table of all there are; `configuration` says which value of one counts, `file` finds
and reads the file, `kind` knows how values are written, `secret` hides what nobody should see.
`app`, `worker` and `cli` ask here; nothing is read before they do. Light on purpose: `holdfast --help` loads it.
"""
