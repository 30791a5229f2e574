"""A foreign process, from the side of the judge.

`confine`, `privileges`, `other_user`   its sandbox
`process`, `wire`                       its life, and the messages
`window`                                device memory for large tensors of the messages
`requests`, `replies`                   the requests to it, and the replies that are allowed
`hold`                                  stopping it; how long it waited for a core
"""
