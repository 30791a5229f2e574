"""What a person meets: the command line (`cli`, `verbs/`), the notebook (`notebook`) and the page (`ui/`)."""
