import java.util.ArrayList;
import java.util.List;
import org.openapitools.client.ApiClient;
import org.openapitools.client.api.DefaultApi;
import org.openapitools.client.model.DocumentObject;
import org.openapitools.client.model.DocumentsInner;
import org.openapitools.client.model.DocumentsRequest;

/** Reranks with the client that openapi-generator made: Rerank BASE_URL MODEL QUERY TOP_N TEXT... Prints [index, score] pairs. */
public class Rerank {
    public static void main(String[] args) throws Exception {
        DocumentsRequest request = new DocumentsRequest().model(args[1]).query(args[2]).topN(Integer.valueOf(args[3]));
        request.addDocumentsItem(new DocumentsInner(new DocumentObject().text(args[4])));
        for (String text : List.of(args).subList(5, args.length)) {
            request.addDocumentsItem(new DocumentsInner(text));
        }
        ApiClient client = new ApiClient();
        client.updateBaseUri(args[0]);
        List<String> results = new ArrayList<>();
        for (var result : new DefaultApi(client).postV2Rerank(request, null).getResults()) {
            results.add("[" + result.getIndex() + ", " + result.getRelevanceScore() + "]");
        }
        System.out.println(results);
    }
}
