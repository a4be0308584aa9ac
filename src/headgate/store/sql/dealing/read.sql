-- Datasources whose streams are to be dealt again, or have been asked to stop for it; or the one of $2, if it is one. Of
-- those that programs push to nothing is wanted.
SELECT d.id, d.name, d.dealt, d.dealing, d.parts,
       CASE WHEN v.source ->> 'type' = $1 THEN d.dealt ELSE d.streams END AS wanted,
       coalesce(d.deal_after > now(), false) AS is_paused
FROM headgate.datasource d
LEFT JOIN headgate.datasource_version p ON p.datasource = d.id AND p.number = d.published_version
LEFT JOIN headgate.datasource_version v
    ON v.datasource = d.id AND v.number = CASE WHEN p.status = 'rejected' THEN d.running_version ELSE p.number END
WHERE d.deal_due AND NOT d.deleted AND ($2::uuid IS NULL OR d.id = $2)
