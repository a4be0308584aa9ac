"""The node's own HTTP: what stands between a socket and the code that answers.

`requests` cuts the bytes of a connection into requests. `connection` holds each of them to the `limits`, gives webhooks
to their door without anything in between, and hands every other request to uvicorn (`asgi`). `census` counts the
connections and ends those that are too slow.
"""
