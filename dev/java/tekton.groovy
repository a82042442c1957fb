// Decodes tasks of Tekton strictly: each line of standard input is an object in JSON. Prints for
// each "accepted", or what is wrong with it.

import com.fasterxml.jackson.databind.JsonMappingException
import com.fasterxml.jackson.databind.ObjectMapper
import com.fasterxml.jackson.databind.introspect.Annotated
import com.fasterxml.jackson.databind.introspect.JacksonAnnotationIntrospector
import io.fabric8.tekton.pipeline.v1.Task

// The types collect unknown fields. Without that, one is an error.
def strict = new JacksonAnnotationIntrospector() {
    @Override
    Boolean hasAnySetter(Annotated member) { false }
}
def mapper = new ObjectMapper().setAnnotationIntrospector(strict)
System.in.eachLine { line ->
    try {
        mapper.readValue(line, Task)
        println 'accepted'
    } catch (JsonMappingException error) {
        println error.originalMessage
    }
}
