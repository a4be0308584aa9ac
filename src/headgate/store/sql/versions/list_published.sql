-- Of all datasources, or of these.
SELECT v.* FROM headgate.datasource_version v
JOIN headgate.datasource d ON d.id = v.datasource AND v.number = d.published_version AND NOT d.deleted
WHERE $1::uuid[] IS NULL OR d.id = ANY ($1)
