-- Which datasources refer to which secrets: in a draft, or in the version that is published or runs.
SELECT DISTINCT unnest(v.secrets) AS secret, d.name, v.status = 'draft' AS is_draft
FROM headgate.datasource d
JOIN headgate.datasource_version v ON v.datasource = d.id
WHERE NOT d.deleted AND v.secrets <> '{}' AND (v.status = 'draft' OR v.number IN (d.published_version, d.running_version))
ORDER BY secret, d.name, is_draft
