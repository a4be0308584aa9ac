WITH fixtures AS (
    DELETE FROM headgate.fixture WHERE datasource = $1  -- Records of somebody, which nobody needs any more.
)
UPDATE headgate.datasource SET deleted = true, enabled = false, paused = false, revision = $2 WHERE id = $1
