-- Their beats are refused. What nobody fences they keep until their lease is over, or until they say that it is over.
UPDATE headgate.node SET ended = true
