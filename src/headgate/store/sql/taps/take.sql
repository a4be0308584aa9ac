-- What has come for these taps; it is gone once it was read.
DELETE FROM headgate.tapped WHERE tap = ANY ($1::uuid[]) RETURNING id, tap, records, dropped, key_id, body
