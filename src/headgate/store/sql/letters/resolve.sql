-- What became of letters. The sink's word that one was replayed outranks ours that it was discarded meanwhile.
UPDATE headgate.dead_letter SET outcome = $2, is_elsewhere = $3, outcome_at = now(), actor = coalesce(replay ->> 'actor', actor), payload = NULL, replay = NULL
WHERE id = ANY ($1::uuid[]) AND outcome <> $2 AND (outcome = 'open' OR $2 IN ('replayed', 'superseded'))
