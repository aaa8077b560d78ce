"""An audit: any loss of any library as a black box, against the textbook and on several
processes.
"""
