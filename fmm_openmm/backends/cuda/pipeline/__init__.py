"""The only description of the method on the GPU: a file for what each stage queues, and
``description``, in which they become a program."""
