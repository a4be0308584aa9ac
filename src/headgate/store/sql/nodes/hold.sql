-- Holds off the end of this incarnation until our commit. A beat may still pass.
SELECT id FROM headgate.node WHERE id = $1 AND NOT ended FOR KEY SHARE
