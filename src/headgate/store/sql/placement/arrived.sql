-- Streams that have just been granted: nobody is told to step down from them for what was wished before.
UPDATE headgate.wish SET stepping = false WHERE stream = ANY ($1::uuid[]) AND stepping
