"""A lean SuperNode: one process that talks to the SuperLink and answers with the installed ClientApp, a fork a message.

Flower's own SuperNode runs the code that the coordinator ships with a run, starts a Python interpreter for every
message (seconds of CPU with torch) and looks for work every 3 s. This one runs only the code that the silo has
installed, and forks it from a warm process. It leans on private names of Flower and so on one minor version of it;
`flower-supernode` goes on working with the same app.
"""
