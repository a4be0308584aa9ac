-- Who publishes decides, not who wrote the draft.
UPDATE headgate.datasource_version SET is_trusted = $3 WHERE datasource = $1 AND number = $2
