"""What runs inside a decoder process, and nowhere else: it reads hostile input with native code.

`__main__` starts it and `confining` takes away what it does not need; `serving` answers requests of
`owner`. A video is opened (`opening`), its packets are read (`packets`), and `sampler` samples it:
only what is needed is decoded (`scheduling`, `selecting`, `rereading`), or all (`frames`), or it is
left to another decoder (`backends`). Frames become pictures (`pixels`), sound becomes windows
(`hearing`). The owner's side is `pipeline.jail`.
"""
