"""The user interfaces: the command line (`cli`, `verbs/`), the notebook (`notebook`, `notebook_display`) and the page (`ui/`).

The command line also has `arguments` (those that several verbs share), `exit_codes`, `console` (terminals, pipes and signals).
"""
