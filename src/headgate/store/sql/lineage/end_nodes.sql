-- Their beats are refused, and nothing is granted to them. The number jumps, because an observer may have seen it before
-- the time that was lost, and would take it for one that has not risen since.
UPDATE headgate.node SET ended = true, beat = beat + $1
