"""What comes before the first call: machines, the runtime root, the command line, versions, and the doors that are
replaced.
"""
