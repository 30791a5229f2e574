"""A foreign process as the judge sees it.

`confine`, `privileges`, `other_user`   its sandbox
`process`, `wire`                       its life, and the messages
`window`                                device memory for large tensors of the messages
`requests`, `replies`                   what it is asked, and what it may answer
`hold`, `waiting`                       stopping it; how long others kept it waiting
"""
