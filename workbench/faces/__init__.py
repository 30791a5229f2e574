"""What a person meets: the command line (`cli`, `verbs/`), the notebook (`notebook`, `notebook_progress`) and the page (`ui/`).

Of the command line: `arguments` (those that several verbs share), `exit_codes`, `console` (terminals, pipes and signals).
"""
