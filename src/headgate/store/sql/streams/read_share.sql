SELECT s.index, d.dealt, d.parts FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource WHERE s.id = $1
