-- Whether we still send, and what was read is still the document; until the end of the transaction nobody changes that.
SELECT extract(epoch FROM now())::float8 AS now_s FROM headgate.notifications WHERE sender = $1 AND version = $2 FOR UPDATE
