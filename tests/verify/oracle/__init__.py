"""A server that answers the questions of the checks rightly by working them out, and wrongly on request.

Every URL begins with the name of a fault, or with `correct`: http://127.0.0.1:PORT/drops-last-chunk/v1
"""
