"""Runs code that a model wrote, isolated from everything else.

A separate process with an empty environment, no network, no files but Python's own library and a temp folder of its
own, no children, and limits on time, memory and output. Three levels, strongest first:

    namespaces   user, mount, pid, network and ipc namespaces with a root of their own, then seccomp
    landlock     the kernel's file and network rules for unprivileged processes, then seccomp
    seccomp      a list of allowed system calls without any that opens a file

None needs root. The outcome names the level that was used. If none works, code is not run at all.
"""
