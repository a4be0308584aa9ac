"""Workers: the streams that this node holds, from source to sink."""
