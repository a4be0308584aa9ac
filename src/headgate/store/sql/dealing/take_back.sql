-- Another try not at once: each pauses all streams.
UPDATE headgate.datasource SET dealing = false, deal_after = now() + $3::interval, revision = $2 WHERE id = $1
