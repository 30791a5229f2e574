"""A foreign ModelNew and its reference, each in a process of its own, questioned by the judge in a third."""
