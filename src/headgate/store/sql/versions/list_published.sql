SELECT v.* FROM headgate.datasource_version v
JOIN headgate.datasource d ON d.id = v.datasource AND v.number = d.published_version AND NOT d.deleted
